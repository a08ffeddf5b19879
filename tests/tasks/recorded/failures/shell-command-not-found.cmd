bash -c 'nosuchprogram --size 4'

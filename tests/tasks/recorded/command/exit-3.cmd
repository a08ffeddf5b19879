bash -c 'echo loss: 1.5; exit 3'

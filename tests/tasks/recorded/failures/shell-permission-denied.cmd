bash -c /etc/passwd

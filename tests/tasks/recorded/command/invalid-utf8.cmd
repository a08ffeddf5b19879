bash -c 'printf '"'"'caf\351 loss: 1,234.5e-1\n'"'"''

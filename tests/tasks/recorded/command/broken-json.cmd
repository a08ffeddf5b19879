/bin/echo '{"metric": "loss", "value": }'

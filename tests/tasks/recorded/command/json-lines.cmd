python3 -c 'import hashlib, json, time
for size in (1024, 1048576):
    data = bytes(size)
    for name in ("sha256", "blake2b"):
        start = time.perf_counter()
        hashlib.new(name, data).digest()
        elapsed = time.perf_counter() - start
        print(json.dumps({"metric": "time", "value": elapsed * 1e3, "unit": "ms", "message_size": size, "variant": name}))
        print(json.dumps({"metric": "digests", "value": 1 / elapsed, "message_size": size, "variant": name, "seen": True}))
'

"""A stand-in for the self-test's child: behaves as its request says."""

import json
import os
import sys
import time


def main() -> None:
    request = json.loads(sys.stdin.readline())
    behaviour = request["behaviour"]
    if behaviour == "hang":
        time.sleep(600)
    if behaviour == "abort":
        os.abort()
    if behaviour == "crash":
        print("segmentation fault", file=sys.stderr)
        os._exit(3)
    print(json.dumps({"ok": behaviour == "pass", "error": "7 elements are wrong"}))


if __name__ == "__main__":
    main()

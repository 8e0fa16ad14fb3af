#!/usr/bin/env python3
"""Ends well if an address answers with 200 within five seconds: `healthy http://127.0.0.1:5000/health`."""

import sys
import urllib.request

try:
    with urllib.request.urlopen(sys.argv[1], timeout=5) as answer:
        sys.exit(0 if answer.status == 200 else 1)
except OSError as error:
    sys.exit(f"{sys.argv[1]}: {error}")

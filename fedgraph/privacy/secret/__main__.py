"""Prints the fingerprint of an aggregator's public key, on its node; missing keys are created.

``python -m fedgraph.privacy.secret STATE_DIR NAME``
"""

import sys
from pathlib import Path

from fedgraph.privacy.secret import fingerprint, folder_of, own_keys

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m fedgraph.privacy.secret STATE_DIR NAME")
    print(fingerprint(own_keys(folder_of(Path(sys.argv[1]).expanduser(), sys.argv[2])).public))

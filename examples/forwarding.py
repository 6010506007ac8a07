"""Forward orders to an app in any language: examples/receiver.py is one, without Onceward.

Run: BILLING_URL=http://127.0.0.1:9000/ onceward serve examples/forwarding.py --dev
"""

import os

from onceward import Inbox

inbox = Inbox()

# In production: https://, a secret from the environment, and no allow_private.
inbox.forward(
    "order.*",
    to=os.environ.get("BILLING_URL", "http://127.0.0.1:9000/"),
    secret=os.environ.get("BILLING_SECRET", "whsec_YW4gZXhhbXBsZSwgbm90IGEgc2VjcmV0IQ=="),
    name="billing",
    allow_private=True,
)

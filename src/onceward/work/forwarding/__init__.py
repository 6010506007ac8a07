"""Posts events to other apps, signed after Standard Webhooks."""

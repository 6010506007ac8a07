"""What every part uses and nothing here knows of webhooks."""

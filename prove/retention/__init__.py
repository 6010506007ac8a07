"""The stage of retention: maintenance again and again, under load, kills and late redeliveries."""

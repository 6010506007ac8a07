"""Senders: how their requests are verified and which events they contain. No I/O, no clock."""

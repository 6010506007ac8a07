"""Handlers as a team defines them: functions and options, checked at start."""

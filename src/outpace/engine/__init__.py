"""The engine: schedules requests over rows and pages, runs plans, turns outcomes into text."""

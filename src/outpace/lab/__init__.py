"""The lab: measures engines through their public side, and reports figures with the machine they were taken on."""

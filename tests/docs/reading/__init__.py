"""Does what the pages of README, documentation and results show, as their readers would."""

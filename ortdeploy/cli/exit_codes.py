"""What each way of ending means to who called ortdeploy."""

EXIT_OK = 0
EXIT_REJECTED = 1
EXIT_CHANGES = 2
EXIT_BUG = 3
EXIT_LOCKED = 4
EXIT_PAUSED = 5
EXIT_USAGE = 64
EXIT_INTERRUPTED = 130

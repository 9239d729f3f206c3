"""What must be moved and computed, how long a device's limit allows for it, and how long it is expected to take."""

"""What touches a Trainer's methods: the link, its patches, its phases."""

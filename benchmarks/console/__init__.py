"""What the console's pages cost: first paint, thumbnails, tasks of the main thread, memory."""

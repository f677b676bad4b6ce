"""A Flower app: its server averages; its clients, where they are processes, train in PyTorch."""

"""Servers as processes of this machine: started in order, looked at, started again, and never left behind."""

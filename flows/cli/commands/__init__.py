"""The commands of `congruence`: options and exit statuses; what they do is loaded when they run."""

"""What all other packages use: files, text, arrays, the operating system, devices, ranks and reporting."""

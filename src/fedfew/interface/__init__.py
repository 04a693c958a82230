"""What people see and type: command line, plots, reports, pages."""

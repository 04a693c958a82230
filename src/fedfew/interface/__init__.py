"""What people see and type: command line, reports, charts, pages."""

"""What the package can show: one file for each demonstration, table or figure."""

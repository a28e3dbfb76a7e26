"""Tables, plots and the page, which `invoke report` (`command`) renders from committed results."""

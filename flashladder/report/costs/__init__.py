"""Pages of what speed comes with: errors beside FA2's; power, clock and energy of seconds on end."""

"""What comes before what: clocks, findings and the accesses that wait for a barrier."""

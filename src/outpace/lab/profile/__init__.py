"""`outpace profile`: where the time of a cycle goes, part by part, until it adds up to what a client sees."""

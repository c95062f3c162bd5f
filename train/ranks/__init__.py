"""One rank among others: device, process group, decisions taken together."""

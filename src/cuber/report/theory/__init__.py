"""The theorems, shown: two tasks at a sliding angle, and what runs recorded of the conditions."""

"""What endpoints are asked and what they tell: events and the content they transfer."""

"""What `penstock top` and `penstock dashboard` show: looks at applications, and what is wrong in them."""

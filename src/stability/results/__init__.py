"""What runs leave on disk, and reading it: columns, files, tables, frames."""

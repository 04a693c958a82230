"""Rows of tables: files of vectors, of mixed columns and of text, and the datasets made of them."""

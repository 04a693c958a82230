"""Training at a site: SGD, views of images, votes, class mixes."""

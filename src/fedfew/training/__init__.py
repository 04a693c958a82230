"""What trains at a site: SGD, views of images, votes, class mixes."""

"""What others have stored or wired up stays as it is: files hold it, byte for byte."""

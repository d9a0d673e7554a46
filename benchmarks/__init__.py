"""What is measured, and what is predicted of it: README.md beside this says what each script answers."""

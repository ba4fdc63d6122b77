"""The only place that touches process groups and devices, and the home of the operators that passes emit."""

// Lets the compiler take functions without a body, which daemonset.go borrows from the controller.

// Lets the compiler take functions without a body, which deployments.go and sets.go borrow from the controllers.

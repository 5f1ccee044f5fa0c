// Lets the compiler take functions without a body, which answers.go borrows from the controllers.

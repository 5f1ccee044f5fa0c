// Lets the compiler take the function without a body, which quota.go borrows from the controller.

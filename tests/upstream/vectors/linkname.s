// Lets the compiler take functions without a body, which reading.go borrows from the kubelet.

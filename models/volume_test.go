//go:build !race

package models_test

// volumeDivisor makes volume cases smaller under the race detector, where SQLite is some thirty times slower.
const volumeDivisor = 1

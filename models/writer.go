package models

type store struct{}

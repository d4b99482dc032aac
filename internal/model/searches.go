package main

var searches = []search{}
